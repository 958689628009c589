"""The fine-tuning of a base head with another loss: `alignment` does it by its `settings`."""
