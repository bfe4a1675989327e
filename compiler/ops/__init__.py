"""Facts about operators that several stages need: the closed set, what fails for values, draws, masks as bits."""
