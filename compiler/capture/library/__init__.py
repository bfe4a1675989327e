"""Parts of torch and of the standard library that capture knows."""
