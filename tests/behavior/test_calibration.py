import numpy as np
from scipy import stats

from kmifqe.behavior.fit_report import calibration, ks_distance

UNIFORM = np.random.default_rng(0).random((4000, 2))


def test_ks_distance_is_scipys():
    for values in (UNIFORM[:, 0], UNIFORM[:7, 1] ** 2, np.array([0.5])):
        np.testing.assert_allclose(ks_distance(values), stats.kstest(values, "uniform").statistic)


def test_uniform_values_have_nominal_coverage_and_pass():
    result = calibration(UNIFORM)
    for coverage, nominal in ((result.coverage_50, 0.5), (result.coverage_90, 0.9)):
        assert (np.abs(coverage - nominal) < 4 * np.sqrt(nominal * (1 - nominal) / 4000)).all()
    assert not result.miscalibrated.any()


def test_a_density_half_as_wide_as_the_data_is_flagged_in_its_dimension():
    too_narrow = stats.norm.cdf(2.0 * stats.norm.ppf(UNIFORM[:, 1]))
    result = calibration(np.stack([UNIFORM[:, 0], too_narrow], axis=1))
    np.testing.assert_array_equal(result.miscalibrated, [False, True])
    assert result.coverage_90[1] < 0.7


def test_few_rows_raise_the_threshold():
    assert calibration(UNIFORM[:50]).threshold > calibration(UNIFORM).threshold > 0.05
