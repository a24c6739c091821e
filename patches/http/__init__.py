"""A worker's HTTP side: who may ask it, what it takes and answers, what stays private."""
