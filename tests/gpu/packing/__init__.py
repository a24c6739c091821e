"""Parcels of wheels for a machine without a network: made here, unpacked there."""
