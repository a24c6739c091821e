"""One file a step: `measure(context, figures)` fills `figures`, and raises where a check fails."""
