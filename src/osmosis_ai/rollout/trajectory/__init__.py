"""Archive format of a rollout: ATIF v1.7 combined with the controller's report."""

from .archive import save_trajectory
from .conversion import TrajectoryReport, convert_sample_to_trajectory, report_from_response

__all__ = ["TrajectoryReport", "convert_sample_to_trajectory", "report_from_response", "save_trajectory"]
