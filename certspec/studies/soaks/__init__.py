"""Long runs that look for what a test's few cases would miss: kills, memory, lossless output."""
