"""What a policy is: the frozen artifact, the learnable policy, drawing, and applying."""

from fasteraa.policy.artifact import Choice, Policy, SubPolicy

__all__ = ["Choice", "Policy", "SubPolicy"]
