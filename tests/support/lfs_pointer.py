"""What lies in the place of a large file that Git LFS did not fetch."""

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 538090408\n"
