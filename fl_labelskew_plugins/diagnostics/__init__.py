"""What the papers plot of a run beside its accuracy; a run that names none of it imports and computes nothing here."""
