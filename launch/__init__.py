"""Commands: absl mains that parse flags, call the library and print."""
