"""What a model must fulfil: checked at build where it can be, recorded for the run where not."""
