"""Reports on a run, for people: what relaxation gives up, where a draft must improve, and one page
that opens offline. They are made from run folders, without torch or a model."""
