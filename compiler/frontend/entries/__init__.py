"""What an entry needs beside guards and graph: its function, the program's filter of guards, sharing by equals."""
