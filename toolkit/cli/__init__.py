"""The command line. `main` imports each command's machinery only when it runs."""
