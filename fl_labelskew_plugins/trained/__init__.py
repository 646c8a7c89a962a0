"""Use of trained models: predict, evaluate, export. Needs only a model's file."""
