"""A worker's doors: who may ask it, what it takes and answers, what stays private."""
