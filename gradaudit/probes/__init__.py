"""What the auditor notes beside the ledger: losses and their graphs, scalers, schedules, ranks, updates by hand."""
