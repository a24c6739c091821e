"""`sgl_kernel.speculative`, which SGLang's NGRAM worker imports."""

from sgl_kernel.speculation import reconstruct_indices_from_tree_mask

__all__ = ["reconstruct_indices_from_tree_mask"]
