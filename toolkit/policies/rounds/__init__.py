"""Many finished prefills and many decode ranks at a time: when a round is due, who goes where."""
