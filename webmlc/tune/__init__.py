"""Find faster schedules by measuring the members of a rule's space."""
