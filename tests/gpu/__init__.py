"""Everything that needs a CUDA device, in one command: `python -m tests.gpu`
(docs/pages/gpu.md)."""
