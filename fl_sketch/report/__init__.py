"""What is said of runs: rows and their names, pictures, and what watches them."""
