"""The audit log, and the privacy ledger."""
