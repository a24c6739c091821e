"""What SGLang can do beside this, and each system of the toolkit with it."""
