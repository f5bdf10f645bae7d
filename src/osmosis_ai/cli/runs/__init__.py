"""What the commands about runs of the platform share, whether evaluations or trainings."""
