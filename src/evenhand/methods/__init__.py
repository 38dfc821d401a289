"""Methods: every module of this package with a `train(run, *, …)` function is one, named by its file."""
