"""What the paper prints, to stand beside what we measured: RMSE, policy values, held-out likelihoods."""

from __future__ import annotations

Printed = tuple[float, float]  # mean, one standard error

# Table 1: RMSE over 10 seeds, by row and method.
METHODS = ("kmifqe", "kmifqe-identity", "sr-dice", "fqe")
_TABLE1: dict[str, tuple[Printed, Printed, Printed, Printed]] = {
    "pendulum": ((0.115, 0.018), (0.250, 0.032), (1.641, 0.426), (8.126, 2.962)),
    "hopper": ((0.023, 0.006), (0.034, 0.009), (0.129, 0.023), (0.083, 0.011)),
    "halfcheetah": ((2.080, 0.010), (2.549, 0.017), (2.784, 0.030), (1.637, 0.051)),
    "walker2d": ((0.032, 0.008), (0.048, 0.009), (0.273, 0.054), (241.319, 49.248)),
    "ant": ((1.800, 0.013), (2.255, 0.014), (1.996, 0.030), (3.219, 0.736)),
    "humanoid": ((0.246, 0.010), (0.293, 0.021), (1.285, 0.050), (8.860, 8.196)),
    "hopper-medium-expert": ((0.019, 0.003), (0.020, 0.005), (0.045, 0.007), (0.033, 0.010)),
    "halfcheetah-medium-expert": ((0.418, 0.016), (0.457, 0.007), (0.239, 0.025), (0.080, 0.007)),
    "walker2d-medium-expert": ((0.036, 0.006), (0.038, 0.006), (0.115, 0.017), (1.051, 0.633)),
    "hopper-medium-replay": ((0.536, 0.099), (0.517, 0.120), (0.849, 0.052), (0.561, 0.118)),
    "halfcheetah-medium-replay": ((4.698, 0.044), (4.765, 0.026), (5.048, 0.090), (6.394, 1.769)),
    "walker2d-medium-replay": ((1.364, 0.052), (1.360, 0.025), (1.523, 0.061), (86.315, 29.206)),
}
TABLE1 = {row: dict(zip(METHODS, printed)) for row, printed in _TABLE1.items()}

# Appendix: undiscounted return R and normalised value V of behaviour mean, behaviour and target. The text gives
# V = −3.791 for Pendulum's target, the table −3.971; R of the MuJoCo behaviours is not printed.
POLICY_VALUES: dict[str, dict[str, float]] = {
    "pendulum": {"V(μ)": -5.080, "V(π̃)": -3.971},
    "hopper": {"R(μ̃)": 2054, "R(π̃)": 2600, "V(μ̃)": 2.553, "V(μ)": 2.506, "V(π̃)": 2.571},
    "halfcheetah": {"R(μ̃)": 7591, "R(π̃)": 10495, "V(μ̃)": 5.716, "V(μ)": 4.211, "V(π̃)": 7.267},
    "walker2d": {"R(μ̃)": 3032, "R(π̃)": 4173, "V(μ̃)": 2.595, "V(μ)": 2.605, "V(π̃)": 2.693},
    "ant": {"R(μ̃)": 3737, "R(π̃)": 5035, "V(μ̃)": 3.439, "V(μ)": 1.886, "V(π̃)": 4.396},
    "humanoid": {"R(μ̃)": 3912, "R(π̃)": 5303, "V(μ̃)": 4.848, "V(μ)": 4.396, "V(π̃)": 5.211},
}

# Appendix: held-out log-likelihood of the fitted behaviour, by number of components.
COMPONENTS = (10, 20, 30, 40)
_LIKELIHOODS: dict[str, tuple[Printed, Printed, Printed, Printed]] = {
    "hopper-medium-expert": ((2.089, 0.002), (2.114, 0.002), (2.123, 0.003), (2.125, 0.002)),
    "halfcheetah-medium-expert": ((6.581, 0.003), (6.591, 0.003), (6.583, 0.003), (6.578, 0.003)),
    "walker2d-medium-expert": ((5.610, 0.002), (5.626, 0.005), (5.630, 0.005), (5.629, 0.005)),
    "hopper-medium-replay": ((0.767, 0.006), (0.787, 0.007), (0.797, 0.006), (0.800, 0.005)),
    "halfcheetah-medium-replay": ((5.315, 0.012), (5.303, 0.012), (5.281, 0.016), (5.271, 0.014)),
    "walker2d-medium-replay": ((2.508, 0.007), (2.492, 0.013), (2.480, 0.016), (2.472, 0.011)),
}
LIKELIHOODS = {row: dict(zip(COMPONENTS, printed)) for row, printed in _LIKELIHOODS.items()}
