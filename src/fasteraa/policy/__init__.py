"""What a policy is: the frozen artifact, the learnable policy, drawing, and applying."""

from fasteraa.policy.policy import Choice, Policy, SubPolicy

__all__ = ["Choice", "Policy", "SubPolicy"]
