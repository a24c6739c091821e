"""The patches against every supported release of SGLang: contracts, smoke, what a release moved."""
