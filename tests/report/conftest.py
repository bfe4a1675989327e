import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [p for p in (here, os.path.join(os.path.dirname(here), "magics")) if p not in sys.path]
