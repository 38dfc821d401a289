"""The core: arrays in, arrays out, for any model and any training loop. Its modules are imported by name."""
