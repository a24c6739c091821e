"""`toolkit relocate`: watches one server's experts and moves them when that pays."""
