"""`toolkit bench`: a load client for a router, its metrics, and paired comparisons of policies."""
