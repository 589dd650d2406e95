"""The ranking service.

::

    endpoints.ROUTES ──▶ server.App (HTTP) ──▶ service.Service (sessions, log, versions) ──▶ ranker.Ranker (scores, choices)
           └──▶ openapi.document
"""
