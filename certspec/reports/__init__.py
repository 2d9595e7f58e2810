"""Reports on a run, for people: what relaxation gives up, where a draft must improve, and one page
that opens offline. This package reads run folders; it needs neither torch nor a model."""
