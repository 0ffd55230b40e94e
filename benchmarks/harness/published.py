"""The best published figures on the splits that papers share, d = 64; none of the models reads the order of the lists.

`NEXT_ITEM` is of models of the next item, leave one out, which do: hit rate@10 and NDCG@10 by the names of models.

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
SOURCES = {
    "gowalla": {"servable": "NESCL", "any": "BSPM"},
    "ml-1m-split": {"servable": "the best in the logs of BARS, RecZoo and BSL"},
}
# The README of github.com/blondered/transformer_benchmark (eSASRec, RecSys 2025): TIGER and ActionPiece as their papers
# report them, the others as calculated there.
NEXT_ITEM = {
    "beauty-s3rec": {
        "TIGER": (0.0648, 0.0384),
        "ActionPiece": (0.0775, 0.0424),
        "HSTU": (0.0788, 0.0439),
        "eSASRec": (0.0928, 0.0523),
        "SASRec with sampled softmax": (0.0921, 0.0531),
    }
}
