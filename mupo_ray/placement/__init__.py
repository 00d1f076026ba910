"""What runs where: the cluster, memory estimates, the plan and its turn."""
