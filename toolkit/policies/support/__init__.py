"""What policies know and share: loads as they were read, users, lengths, whose turn it is."""
