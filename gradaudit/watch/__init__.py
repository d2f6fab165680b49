"""What the auditor notes of a run beside the ledger: losses and their graphs, scalers, schedules, ranks, updates by hand."""
