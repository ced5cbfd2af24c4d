"""The engines of this Python: each measures a trial (see `webmlc.tune.trial`)."""
