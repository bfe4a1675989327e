"""What a report concludes beside its marks and findings: which figures count, where the time went, what would help."""
