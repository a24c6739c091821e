"""How the embedded model was trained, and what it is measured by. None of it is in the wheel."""
