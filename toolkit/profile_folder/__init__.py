"""The folder of a measured profile: its schema, its checks, and how it is read and written."""
