"""Why a graph ends: the table of causes, the remedy in the words of the user, and what fails later."""
