"""The best published figures on the splits that papers share, d = 64; none of the models reads the order of the lists.

`servable`: of one vector for each user and item, which an index can serve. Gowalla: NESCL (Sun et al., arXiv
2402.11523); MovieLens-1M: the logs of BARS, RecZoo and BSL. `any`: of a model that an index cannot serve. Gowalla: BSPM
(Choi et al., SIGIR 2023).
"""

PUBLISHED = {
    "gowalla": {
        "servable": {"recall@20": 0.1917, "ndcg@20": 0.1617},
        "any": {"recall@20": 0.1920, "ndcg@20": 0.1597},
    },
    "ml-1m-split": {"servable": {"recall@20": 0.2809, "ndcg@20": 0.2681}},
}
