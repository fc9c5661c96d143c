# SPDX-License-Identifier: Apache-2.0
"""`python -m loralei serve MODEL` is `loralei serve MODEL`."""
import os
import sys

from loralei._server import binary

os.execv(binary(), [binary(), *sys.argv[1:]])
