"""The rows of docs/reproduction.md: what the documents ask for, their figures, and ours.

Figures are ratios between two ways measured side by side. Where a document has seconds or percents
of both, `document` is their ratio.
"""

from orcbench.documents.orchestration import ORCHESTRATION
from orcbench.documents.replication import REPLICATION
from orcbench.documents.staging import STAGING
from orcbench.documents.threads import THREADS

DOCUMENTS = (ORCHESTRATION, STAGING, THREADS, REPLICATION)
