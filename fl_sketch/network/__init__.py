"""Sites that keep their data: a coordinator, sites, their policies, secure aggregation.

`coordinator` and `site` take bytes and return bytes; how these travel is up to the
caller, such as `nvflare`. `docs/network.md` and `docs/secure_sum.md` say who learns
what.
"""

from fl_sketch.network.coordinator import Coordinator as Coordinator
from fl_sketch.network.coordinator import Rules as Rules
from fl_sketch.network.policy import SitePolicy as SitePolicy
from fl_sketch.network.run import in_one_process as in_one_process
from fl_sketch.network.site import Site as Site
