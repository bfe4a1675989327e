"""Where buffers lie: whose memory each takes, which copies are not made, what is written in an input."""
